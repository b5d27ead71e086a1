"""The broker's side of the protocol: listeners, their connections, whose requests go first, and how many there may be.

`server.NetworkServer` listens and hands each request to the handler of `ports`; what a request means is not known here.
A connection whose listener asks for a login is diverted to who answers it (`ServerConnection.divert`).
A connection counts from the moment it is accepted, before its TLS handshake too; who makes too many in a second waits
(`admission`). Absent: closing the quietest connection in favour of one of the inter-broker listener.
"""

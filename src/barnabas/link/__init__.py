"""One connection of the Kafka protocol, either side: frames, ticks, order of responses, bounds on everything.

`buffers` and `frames` receive, `tick` decides whose turn it is and joins what is sent, `connection` is what both sides
share, `client` sends requests and matches the responses. Absent: pools of outgoing connections with back-off (whoever
holds a connection to a broker makes a new one when it is lost).
"""

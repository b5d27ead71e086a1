"""One connection of the Kafka protocol, either side: frames, ticks, order of responses, bounds on everything.

`buffers` and `frames` receive, `kernel.tick` decides the order of service and joins what is sent, `connection` is what
both sides share, `client` sends requests and matches the responses, `outgoing` connects to one broker again and again,
with back-off. Who talks to many brokers holds one `Outgoing` for each.
"""

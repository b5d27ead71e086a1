"""Assembly: a broker out of a configuration and a host, started and stopped in order; and the supervisor of
`barnabas up`.

`broker` knows every room and binds their ports; each other file here owns one subject of a broker's life.
"""

"""Assembly: builds a broker from a configuration and a host, starts and stops it in order; and the supervisor of
`barnabas up`.

`broker` knows every room and binds their ports; each other file here owns one subject of a broker's life.
"""

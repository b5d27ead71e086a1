"""TLS without any I/O: `ssl.*` configs, keys and certificates, contexts made of them, and who a certificate names.

`settings` has Kafka's configs, `pem`, `pkcs12` and `stores` read what they name, `contexts` makes OpenSSL's contexts;
`distinguished_names` and `principal_rules` make a principal of a client's certificate. The module `ssl` is loaded only
where a context is made. A connection's bytes are encrypted in `link.tls`.
"""

"""SASL without I/O: PLAIN, SCRAM and OAUTHBEARER, both ends, and `sasl.jaas.config` as Kafka's users write it.

`exchange` says what a mechanism is to those who carry its messages; `mechanisms` makes one by its name. Brokers take
the servers' end, our client and brokers that call others take the clients'. A delegation token logs in by SCRAM
(KIP-48): its id is the name, its HMAC the password. Absent: GSSAPI.
"""

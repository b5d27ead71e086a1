"""Typed configuration under Kafka's names, and the properties format that `server.properties` is written in."""

"""Kafka's znodes: their paths and payloads, as Apache Kafka 3.9 writes them (`kafka/zk/ZkData.scala` is where it
says so).
"""

"""A small client of the Kafka protocol on asyncio, through the host only: against Barnabas, Apache Kafka, and in the
simulator.

    async with Client(host, ClientSettings(bootstrap_servers=("127.0.0.1:9092",)), logger) as client:
        await Admin(client).create_topics([NewTopic("flights", partitions=3, replication_factor=3)])
        async with Producer(client, ProducerSettings()) as producer:
            metadata = await (await producer.send(ProducerRecord("flights", value=b"...")))
        async with Consumer(client, ConsumerSettings(group_id="readers")) as consumer:
            consumer.subscribe(["flights"])
            records = await consumer.poll(1_000)

A `Client` holds what its users share: what is known of the cluster (`metadata`, `cluster`), and the connections, by
broker and lane (`client`). `admin` over `config_admin` and `group_admin`; `broker_views`; `producer` over `batches`
and `producer_sender`, and `transactional_producer` over it; `consumer` over `positions`, `fetcher`, `fetch_session` and
`offset_lookup`; `group_member` over `assignors`, `subscription_bytes` and `group_coordinator`, a `coordinator`.

Absent: KIP-848 groups.
"""

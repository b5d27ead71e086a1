"""What producers, consumers and followers ask of a partition: appending, reading, looking up, deleting, and what waits.

`produce` and `acknowledgements` append and say when; `fetch` parks what waits for bytes, `fetch_reads` reads, and
`fetch_sessions` remembers what is fetched. It knows partitions, and not who hosts them.
"""

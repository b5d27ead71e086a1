"""The console: what happens in a cluster, in a browser, for any cluster of the Kafka protocol. It only reads.

`serve` listens; `poller` asks the cluster, once for all who look; `pages/` has a function for each page, which turns
what the poller knows into HTML. Pages work without JavaScript; `static/console.js` keeps them fresh.

`http` and `access` (who may ask) know nothing of Kafka, `html`, `charts` and `lanes` nothing of either. `history` and
`records_read` are what is not simply asked: what was seen change, and before that, by `earlier_changes`, what a broker
remembers; and the records of one partition.
"""

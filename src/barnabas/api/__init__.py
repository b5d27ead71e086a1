"""Every API of the broker: one handler per file, called by `dispatch`, which knows them by key from a `registry`.

A handler turns a request into calls of the rooms below and their outcome into a response; it is handed what it uses and
nothing else. `context` is what it knows of the request beside its fields, and how it answers later.
"""

"""The files of a log looked at without a broker: each batch and index entry, and what is damaged."""

"""The pages: each module has functions that turn what the poller knows, and the address, into a `Page`."""

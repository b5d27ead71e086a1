"""All logs of a broker: loaded, recovered, tended and closed."""

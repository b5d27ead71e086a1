"""Groups of both protocols: how long a large one takes to settle, what many cost, how long one turn is."""

"""The site side of vertical runs: a party's table, blocks, labels and limits, and the client that uses them."""

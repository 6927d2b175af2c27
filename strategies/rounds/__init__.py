"""The parts of a round, which every strategy uses.

In this order each module uses those before it only: errors, handshake, schema, replies, site_states, family, exchange.
"""

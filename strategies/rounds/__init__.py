"""The parts of a round, which every strategy uses.

Each module uses only those before it in this list: errors, handshake, schema, replies, site_states, family, exchange.
"""

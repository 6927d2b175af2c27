"""Vertical learning: the engine of VFB2, without Flower. Only VFB2 imports this package.

``problem`` has the mathematics, ``masking`` the hidden sums, ``transport`` the connections between the parties,
``segment`` a party's work in a segment, and ``records`` the messages between the server and the parties.
"""

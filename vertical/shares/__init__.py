"""Training on secret shares: weights, scores and slopes exist only as sums of random numbers, one at each party.

All numbers are integers modulo 2^64. A value is *shared* if each party has a random number, and the numbers add up to
the value; every set of parties except all of them has uniform numbers only. A *dealer*, who has no data, hands out
shares of random numbers and of functions of them (a *deal*). To compute with a shared value, the parties add a dealt
random number r to it and publish the sum c, which is uniform. Each party then computes its share of the result from c
and from its dealt shares:

| result | of c = value + r | dealt in addition to r | module |
|---|---|---|---|
| the rounded weights W | (c >> f) - (r >> f) | r >> f, and r's highest bit | `updates` |
| the scores X W | X (c >> f) - X (r >> f) | U (r >> f), for X = E + U with public E | `updates` |
| the slopes of the loss | waves of c - r, by the angle addition formulas | sin k r and cos k r | `waves`, `updates` |
| the gradient X^T theta | X^T c - X^T r | U^T r | `updates` |

So an update of the weights needs three exchanges. Modules: `numbers` (fixed-point numbers, random streams), `waves`
(slopes as sums of sines), `deals` (the dealer's work), `checks` (of the dealer), `updates` (a party's work),
`order` and `dealer` (a dealer that is a third party), `sums` and `phases` (the exchanges of a segment), `segment`.

The products by dealt random numbers are Beaver's (Efficient multiparty protocols using circuit randomization, CRYPTO
1991). Truncation by the highest bit of r is exact up to one unit of the last place for every number of parties.
"""

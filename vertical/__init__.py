"""Vertical federated learning with the method VFB2, without Flower. VFB2's server and client import this package.

In vertical learning the participants have different columns of the same rows. The terms of this package:

- party: A participant, one Flower client. An *active* party has labels, a *passive* party has none.
- block: A party's part of the model: its columns and their weights.
- partial: A party's part of a row's prediction, its columns times its weights. All partials of a row add up to z.
- dominator: The active party that leads an update. It receives the masked sum of the other parties' partials. The
  other parties are the update's *collaborators*.
- theta: The derivatives of the loss in z. The dominator sends them to all parties, which then update their blocks.
- reporter: The first active party. It also sends the metrics to the server.
- segment: The epochs of one Flower round, in which the parties talk to each other directly.

``problem`` has the mathematics, ``masking`` the masks of sums, ``transport`` the connections between the parties,
``segment`` a party's work in a segment, and ``records`` the messages between the server and the parties.
"""

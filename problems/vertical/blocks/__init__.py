"""A party's columns with the weights on them, dense or sparse, and the updates of VFB2 there."""

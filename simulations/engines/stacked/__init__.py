"""Stacked cohorts: the clients of a round trained as one, their arrays side by side on a leading axis."""

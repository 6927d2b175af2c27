"""Every error that a user can bring about: what is done, and what the message then says."""

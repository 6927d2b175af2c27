"""Guards around a site's work for a message: each may refuse the message, and check or change the answer."""

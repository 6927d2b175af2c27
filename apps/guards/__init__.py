"""Guards around a site's work for a message: no value leaves the site unless every guard has let it pass."""

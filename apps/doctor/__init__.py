"""``florilegium doctor``: checks of a site's or SuperLink's installation, data and network before a start."""

"""``python -m apps.doctor``: checks, one by one, what a site or a SuperLink needs before a federation starts."""

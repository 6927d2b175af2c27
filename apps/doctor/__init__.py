"""``python -m apps.doctor``: checks of everything that a site or a SuperLink needs before a federation starts."""

"""Applications built with millwheel. No module of the engine imports them."""

"""Applications: what is built with millwheel, beside the engine. No module of the engine imports them."""

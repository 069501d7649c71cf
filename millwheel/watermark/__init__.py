"""Low watermarks (4.5, 7.2): what injectors vouch for, and the authority that knows them all."""

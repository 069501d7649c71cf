"""Low watermarks (4.5, 7.2): algorithm, injectors' watermarks, authority."""

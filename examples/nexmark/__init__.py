"""NEXMark: queries over an online auction, as MillWheel pipelines."""

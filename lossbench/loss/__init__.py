"""Loss modes as pure tensor mathematics: surrogates, aggregations, advantages, and the parser of their names."""

"""The membrane as a Markov chain (theorem 1, lemma 1), computed numerically."""

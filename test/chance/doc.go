// Package chance computes how far a random count may stray, so that a test of random behaviour fails once in 1e9 runs by chance,
// and not by a threshold that somebody guessed.
package chance

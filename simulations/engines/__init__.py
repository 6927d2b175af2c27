"""The engines that compute runs: in this process, by Flower, round by round, or in worker processes."""

"""The engines that compute runs: in this process, with Flower, round by round, or in worker processes."""

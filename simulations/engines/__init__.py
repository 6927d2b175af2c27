"""Where runs are computed: in this process, by Flower, round by round, in processes of their own."""

package prometheus

// failover is how much fresher, in milliseconds, another replica's series has to be before it takes
// over: more than a slow scrape interval, so that two healthy replicas never take turns.
const failover = 90_000

// replicas chooses one of the series by which a pair of servers tells of the same engine. Mixing
// them would be wrong: their clocks differ a little, so a counter that both read can seem to step
// back, which means a restart.
type replicas struct {
	label  string
	chosen map[uint64]*replica
}

type replica struct {
	value  string // of the replica label
	newest int64  // its newest sample
	seen   uint64 // the fetch that last chose it
}

// choose says whether the series is the one to listen to. newest is the time of its newest sample.
func (r *replicas) choose(k *knownSeries, newest int64) bool {
	key := k.ls.Hash()
	c := r.chosen[key]
	switch {
	case c == nil:
		c = &replica{}
		r.chosen[key] = c
	case c.value == k.replica:
	case newest-c.newest <= failover:
		return false
	}
	c.value, c.newest, c.seen = k.replica, newest, k.seen
	return true
}

func (r *replicas) forget(fetch uint64) {
	for key, c := range r.chosen {
		if fetch-c.seen >= keepUnseen {
			delete(r.chosen, key)
		}
	}
}

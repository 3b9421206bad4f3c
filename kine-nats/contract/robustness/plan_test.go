package main

import "testing"

// enough is the number of consecutive runs after which each fault was combined with each shape.
const enough = 48

// meets counts each combination in a number of runs from a first one on.
func meets(first int64, runs int, combination func(plan) string) map[string]int {
	met := map[string]int{}
	for number := range runs {
		met[combination(planOf(first+int64(number)))]++
	}
	return met
}

func TestEachFaultMeetsEachShapeSoon(t *testing.T) {
	for first := range int64(3 * enough) {
		met := meets(first, enough, func(p plan) string { return p.fault.name + " on " + p.shape.String() })
		if all := len(faults) * len(shapes); len(met) != all {
			t.Fatalf("from seed %d on, %d runs have %d of %d faults on shapes", first, enough, len(met), all)
		}
	}
}

func TestEverythingMeetsInTheEnd(t *testing.T) {
	all := len(faults) * len(kinds) * len(shapes)
	for _, first := range []int64{0, 1, 7, 999_999_999} {
		for name, times := range meets(first, all, plan.String) {
			if times != 1 {
				t.Errorf("from seed %d on, %d runs have %q %d times", first, all, name, times)
			}
		}
	}
}

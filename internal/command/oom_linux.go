package command

import (
	"os"
	"strconv"
)

// setOOMScoreAdj sets how likely the kernel kills this process when memory runs out:
// proc_pid_oom_score_adj(5).
func setOOMScoreAdj(n int) error {
	return os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(n)), 0)
}

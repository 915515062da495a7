package cluster

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the program that TestDiesWithParent kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CLUSTER_TEST_PARENT"); dir != "" {
		ps := &processes{dir: dir}
		p, err := ps.start("sleeper", "sleep", "600")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid)
		select {}
	}
	os.Exit(m.Run())
}

func running(pid int) bool {
	// A zombie that nobody has reaped has no working directory any more.
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); running(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d still runs", pid)
		}
	}
}

func TestDiesWithParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "CLUSTER_TEST_PARENT="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(line)
	}
	// Long enough for a thread that started it to be let go, if it were not held.
	time.Sleep(100 * time.Millisecond)
	if !running(pid) {
		t.Fatal("it ended before its parent did")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	awaitEnd(t, pid)
}

func TestStopDetached(t *testing.T) {
	dir := t.TempDir()
	ps := &processes{dir: dir, detached: true}
	ours, err := ps.start("ours", "sh", "-c", "sleep 600 & wait")
	if err != nil {
		t.Fatal(err)
	}
	// Somebody else's process, whose number a pid file of ours holds since a reboot.
	others, err := (&processes{dir: t.TempDir()}).start("others", "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	defer others.Kill()
	if err := os.WriteFile(dir+"/stale.pid", []byte(strconv.Itoa(others.Pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := StopDetached(dir); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, ours.Pid)
	if others.Exited() {
		t.Error("ended a process that is not the cluster's")
	}
}

func TestFailureQuotesLog(t *testing.T) {
	p, err := (&processes{dir: t.TempDir()}).start("broken", "sh", "-c", "echo no such flag; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	if got := p.failure().Error(); !strings.Contains(got, "exit status 3") || !strings.Contains(got, "no such flag") {
		t.Errorf("failure says %q", got)
	}
}

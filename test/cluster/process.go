package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Process is a program that the cluster started. It leads a process group of its own, and its
// output goes to a file.
type Process struct {
	Name string
	Log  string
	Pid  int

	done chan struct{}
	err  error
}

// processes starts programs and remembers them, to stop them in the reverse order.
type processes struct {
	dir string // logs and pid files
	// detached lets the programs outlive this one. Otherwise they are killed with it, however it
	// ends.
	detached bool

	mu      sync.Mutex
	running []*Process
	runs    map[string]int
}

// start runs a program under a name; a later run under the same name gets a log file of its own.
func (ps *processes) start(name, program string, args ...string) (*Process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.runs == nil {
		ps.runs = map[string]int{}
	}
	ps.runs[name]++
	file := name
	if n := ps.runs[name]; n > 1 {
		file += "." + strconv.Itoa(n)
	}
	log, err := os.Create(filepath.Join(ps.dir, file+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()

	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = ps.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if ps.detached {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	} else {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	p := &Process{Name: name, Log: log.Name(), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread that started the program ends, so that thread
		// has to stay for as long as the program does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.Pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	ps.running = append(ps.running, p)
	if ps.detached {
		if err := os.WriteFile(filepath.Join(ps.dir, file+".pid"), []byte(strconv.Itoa(p.Pid)), 0o644); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// stop ends every program, the latest first.
func (ps *processes) stop() {
	ps.mu.Lock()
	running := ps.running
	ps.running = nil
	ps.mu.Unlock()
	for i := len(running) - 1; i >= 0; i-- {
		running[i].Stop()
	}
}

// Exited says whether the program has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Stop asks the program to end, and insists after ten seconds.
func (p *Process) Stop() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Kill ends the program and its children at once, as a lost machine would.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *Process) signal(s syscall.Signal) {
	if !p.Exited() {
		// Its whole group; that it may be gone already is no error.
		_ = syscall.Kill(-p.Pid, s)
	}
}

// failure describes an early end, with the last lines of the log.
func (p *Process) failure() error {
	return fmt.Errorf("%s ended early (%v); the end of %s:\n%s", p.Name, p.err, p.Log, tail(p.Log, 4000))
}

// tail returns the last bytes of a file.
func tail(file string, n int64) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	buf := make([]byte, min(n, info.Size()))
	if _, err := f.ReadAt(buf, info.Size()-int64(len(buf))); err != nil {
		return err.Error()
	}
	return string(buf)
}

// stopRecorded ends the programs whose pid files are in dir: those of a detached cluster, started
// by another process.
func stopRecorded(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	if err != nil {
		return err
	}
	var errs []error
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pid, err := strconv.Atoi(string(data))
		if err != nil {
			errs = append(errs, fmt.Errorf("reading %s: %w", file, err))
			continue
		}
		pids = append(pids, pid)
	}
	// The number may belong to somebody else by now: only a program that works in this directory
	// is one of the cluster's.
	ours := func(pid int) bool {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		return err == nil && cwd == dir
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for _, pid := range pids {
			if ours(pid) {
				_ = syscall.Kill(-pid, s)
			}
		}
		for range 100 {
			if !slices.ContainsFunc(pids, ours) {
				return errors.Join(errs...)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return errors.Join(append(errs, fmt.Errorf("some of the processes %v do not end", pids))...)
}

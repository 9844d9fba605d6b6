// Command rival elects with client-go's leaderelection, as a service in Go does, and writes down what it
// believes, so that a test can let it compete with instances of this project for one Lease.
//
// Each line of its log says that it counted itself as the leader at some time between two moments, in
// microseconds of the clock that all processes of the machine share: `leads <stretch> <before> <after>`. The
// stretch is one more each time that it leads again: client-go has no fencing token. Its input takes one
// command, `stop`: it gives the Lease back and ends. If the input ends, it ends at once. On its output it
// tells what happens, in lines of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var (
	kubeconfig    = flag.String("kubeconfig", "", "how to reach the API server")
	namespace     = flag.String("namespace", "default", "the namespace of the Lease")
	lease         = flag.String("lease", "leader", "the name of the Lease")
	identity      = flag.String("identity", "rival", "what is written as its holder")
	leaseDuration = flag.Duration("lease-duration", 15*time.Second, "how long the Lease holds without renewal")
	renewDeadline = flag.Duration("renew-deadline", 10*time.Second, "how long renewals may fail")
	retryPeriod   = flag.Duration("retry-period", 2*time.Second, "the time between two attempts")
	logFile       = flag.String("log", "", "where the answers are written")
)

func main() {
	flag.Parse()
	out, err := os.OpenFile(*logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	// As controllers have it: one attempt that hangs leaves time for another.
	config.Timeout = *renewDeadline / 2
	client, err := kubernetes.NewForConfig(config)
	check(err)

	ctx, stop := context.WithCancel(context.Background())
	go obey(stop)

	var led leadership
	go led.writeDown(out)
	tell("started", "")
	// An elector ends with its leadership: most programs do so, too, and are started again.
	for ctx.Err() == nil {
		elector := led.newElector(client)
		led.elector.Store(elector)
		elector.Run(ctx)
	}
	tell("stopped", "")
}

// An elector that was stopped until it lost reads the Lease before it gives it back, but goes by who held it
// before that: as of client-go 0.36 it takes the Lease away from the new leader. A careful user sees to it
// that it gives back only its own.
type ownLease struct {
	resourcelock.LeaseLock
	holder string
}

func (lock *ownLease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := lock.LeaseLock.Get(ctx)
	if err == nil {
		lock.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (lock *ownLease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && lock.holder != lock.Identity() {
		return fmt.Errorf("the Lease belongs to %q now", lock.holder)
	}
	return lock.LeaseLock.Update(ctx, record)
}

// What client-go offers to careful users.
type leadership struct {
	elector atomic.Pointer[leaderelection.LeaderElector]
	work    atomic.Pointer[context.Context]
}

func (led *leadership) newElector(client *kubernetes.Clientset) *leaderelection.LeaderElector {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &ownLease{LeaseLock: resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		}},
		LeaseDuration:   *leaseDuration,
		RenewDeadline:   *renewDeadline,
		RetryPeriod:     *retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(work context.Context) {
				led.work.Store(&work)
				tell("promoted", *identity)
			},
			OnStoppedLeading: func() { tell("demoted", *identity) },
			OnNewLeader:      func(leader string) { tell("leaderChanged", leader) },
		},
	})
	check(err)
	return elector
}

// The context ends before the Lease is given back, the holder is the last one seen, and the check knows
// whether that was renewed in time by the clock of this process.
func (led *leadership) holds() bool {
	elector, work := led.elector.Load(), led.work.Load()
	return work != nil && (*work).Err() == nil && elector.IsLeader() && elector.Check(0) == nil
}

func (led *leadership) writeDown(out *os.File) {
	stretch, held := 0, false
	for range time.Tick(2 * time.Millisecond) {
		before := microseconds()
		holds := led.holds()
		if holds && !held {
			stretch++
		}
		held = holds
		if holds {
			_, err := fmt.Fprintf(out, "leads %d %d %d\n", stretch, before, microseconds())
			check(err)
		}
	}
}

func obey(stop context.CancelFunc) {
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		if input.Text() == "stop" {
			stop()
		}
	}
	os.Exit(0)
}

func microseconds() int64 {
	var now unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano() / 1000
}

var telling sync.Mutex

func tell(event, leader string) {
	telling.Lock()
	defer telling.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(map[string]string{"event": event, "leader": leader}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

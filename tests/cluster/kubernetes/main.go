// The programs of a Kubernetes node and of its control plane in one file. Which of them it is, the name
// says by which it is called.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kubelet":
		if err := takeContainerd(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		command = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	default:
		fmt.Fprintf(os.Stderr, "%s is none of kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

// Takes --containerd from the command line and sets cAdvisor's own flag of that name. Kubelet 1.36 would do so; 1.37 has
// no such flag any more and ends.
func takeContainerd() error {
	for i, argument := range os.Args {
		if socket, found := strings.CutPrefix(argument, "--containerd="); found {
			os.Args = append(os.Args[:i], os.Args[i+1:]...)
			return flag.Set("containerd", socket)
		}
	}
	return nil
}

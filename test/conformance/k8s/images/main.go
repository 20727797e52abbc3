// Command images prints the images that upstream's network tests use, a line each: what it holds, and its name at this version.
package main

import (
	"fmt"

	"k8s.io/kubernetes/test/utils/image"
)

func main() {
	for _, i := range []struct {
		holds string
		id    image.ImageID
	}{
		{"agnhost", image.Agnhost}, {"busybox", image.BusyBox}, {"regression-issue-74839", image.RegressionIssue74839},
		{"debian", image.GlibcDnsTesting}, {"debian", image.DistrolessIptables},
	} {
		fmt.Println(i.holds, image.GetE2EImage(i.id))
	}
	fmt.Println("pause", image.GetPauseImageName())
}

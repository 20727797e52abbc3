package configuration

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/component-base/logs/json/register" // as kube-proxy's main does
	"k8s.io/kube-proxy/config/v1alpha1"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	internalv1alpha1 "k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"
)

// kubeProxySays returns the configuration that kube-proxy on Linux makes of a file, as /configz shows it, and whether it
// complains about unknown fields; an error if it refuses the file. The steps are those of its Options: decode strictly, else
// leniently, complete, validate.
func kubeProxySays(text string) (c *v1alpha1.KubeProxyConfiguration, complains bool, err error) {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if runtime.IsStrictDecodingError(err) {
		complains = true
		lenient := runtime.NewScheme()
		if err := kubeproxyconfig.AddToScheme(lenient); err != nil {
			return nil, false, err
		}
		if err := internalv1alpha1.AddToScheme(lenient); err != nil {
			return nil, false, err
		}
		codecs := serializer.NewCodecFactory(lenient, serializer.DisableStrict)
		object, _, err = codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	}
	if err != nil {
		return nil, false, err
	}
	internal, ok := object.(*kubeproxyconfig.KubeProxyConfiguration)
	if !ok {
		return nil, false, fmt.Errorf("is a %T", object)
	}
	asked := internal.Mode
	if internal.Mode == "" { // platformApplyDefaults
		internal.Mode = kubeproxyconfig.ProxyModeIPTables
	}
	if internal.Mode == kubeproxyconfig.ProxyModeNFTables && len(internal.NodePortAddresses) == 0 {
		internal.NodePortAddresses = []string{kubeproxyconfig.NodePortAddressesPrimary}
	}
	if internal.DetectLocalMode == "" {
		internal.DetectLocalMode = kubeproxyconfig.LocalModeClusterCIDR
	}
	if errs := validation.Validate(internal); len(errs) > 0 {
		return nil, complains, errs.ToAggregate()
	}
	internal.Mode = asked
	versioned, err := scheme.Scheme.ConvertToVersion(internal, v1alpha1.SchemeGroupVersion)
	if err != nil {
		return nil, complains, err
	}
	return versioned.(*v1alpha1.KubeProxyConfiguration), complains, nil
}

package k8s
import ("testing";"strings";"time";"fmt")
func TestZZ(t *testing.T){
 n:=5<<20
 rep:=func(s string) string { return strings.Repeat(s,n/len(s)) }
 for name,s:=range map[string]string{
  "[":rep("["),"- ":rep("- "),"{a: ":rep("{a: "),"? ":rep("? "),"comment":rep("# x\n"),"comment1":"a: b\n"+rep("# x\n"),"commentind":"a:\n"+rep("  # x\n  - b\n"),": ":rep(": "),"quote":rep("\""),"sq":rep("'"),"|":rep("|\n"),"a: b lines":rep("a: b\n"),"flow list":"["+rep("a,")+"]","flow map":"{"+rep("a: b,")+"}","anchors":rep("- &a b\n"),"aliases":"- &a b\n"+rep("- *a\n"),"---":rep("---\n"),"%":rep("%YAML 1.1\n"),"\\t":rep("\t"),"!":rep("!a "),"items":"kind: List\nitems:\n"+rep("- a\n"),"jsonarr":"{\"kind\":\"List\",\"items\":["+rep("{},")+"{}]}","json[":"{\"a\":"+rep("["), "svc bad":rep("---\nkind: Service\nmetadata: {name: a}\n"),"json bad":rep("{\"kind\":\"Service\"}\n"),"cr":rep("\r"),"nl":rep("\n"),"docs...":rep("...\n"),"<<":"kind: Service\napiVersion: v1\nmetadata: &a\n  <<: *a\n", "keys":"kind: Service\napiVersion: v1\nmetadata:\n  labels:\n"+func()string{var b strings.Builder;for i:=0;i<300000;i++{fmt.Fprintf(&b,"    k%d: v\n",i)};return b.String()}(),
  "unk":"kind: Service\napiVersion: v1\n"+func()string{var b strings.Builder;for i:=0;i<300000;i++{fmt.Fprintf(&b,"k%d: v\n",i)};return b.String()}(),
 }{
  for _,f:=range []string{"x.yaml"}{
  st:=time.Now(); out:=loadText(t,f,[]byte(s)); d:=time.Since(st)
  if d>500*time.Millisecond || len(out)>3000 { fmt.Printf("%q %v len=%d %.200s\n",name,d,len(out),out) }
  }
 }
}

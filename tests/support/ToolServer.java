import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after the other in one JVM. tests/support/tool_server.py says what goes in
 * and out, and why. Compiled by Janino when it starts, which has neither lambdas nor generics that infer.
 */
public class ToolServer {
    private static final long CLEANING_MS = 3000;
    /** Of Yammer, for all meters of the JVM: the first tool that has some, as a client of ZooKeeper has, starts them. */
    private static final String OF_ALL_TOOLS = "metrics-meter-tick-thread-";
    private static final SwitchedOutput OUTPUT = new SwitchedOutput();
    private static final SwitchedOutput ERRORS = new SwitchedOutput();
    private static final SwitchedInput INPUT = new SwitchedInput();

    public static void main(String[] none) throws Exception {
        DataInputStream requests = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream answers = new DataOutputStream(new BufferedOutputStream(System.out));
        System.setIn(INPUT);
        System.setOut(new PrintStream(OUTPUT, true, "UTF-8"));
        System.setErr(new PrintStream(ERRORS, true, "UTF-8"));
        while (true) {
            int count;
            try {
                count = requests.readInt();
            } catch (EOFException gone) {
                Runtime.getRuntime().halt(0);
                return;
            }
            String[] words = new String[count];
            for (int index = 0; index < count; index++) {
                words[index] = new String(bytes(requests), "UTF-8");
            }
            Run run = new Run(words, bytes(requests));
            run.start();
            run.ended.await();
            answers.writeInt(run.status);
            answers.writeInt(run.output.length);
            answers.write(run.output);
            answers.writeInt(run.errors.length);
            answers.write(run.errors);
            answers.flush();
            answers.writeByte(run.clean() ? 1 : 0);
            answers.flush();
        }
    }

    private static byte[] bytes(DataInputStream requests) throws IOException {
        byte[] read = new byte[requests.readInt()];
        requests.readFully(read);
        return read;
    }

    /** One tool from its start to its end. */
    private static class Run implements Runnable, Exit.Procedure, Exit.ShutdownHookAdder {
        final CountDownLatch ended = new CountDownLatch(1);
        int status;
        byte[] output;
        byte[] errors;
        private final String[] words;
        private final ByteArrayOutputStream written = new ByteArrayOutputStream();
        private final ByteArrayOutputStream said = new ByteArrayOutputStream();
        private final List hooks = new ArrayList();
        private final ThreadGroup group = new ThreadGroup("tool");
        private final ToolLoader loader;
        private final Thread main = new Thread(group, this, "main");
        private boolean isOver;

        Run(String[] words, byte[] input) throws Exception {
            this.words = words;
            this.loader = new ToolLoader();
            INPUT.target = new ByteArrayInputStream(input);
            OUTPUT.target = written;
            ERRORS.target = said;
            Exit.setExitProcedure(this);
            Exit.setHaltProcedure(this);
            Exit.setShutdownHookAdder(this);
        }

        void start() {
            main.setContextClassLoader(loader);
            main.start();
        }

        public void run() {
            try {
                String[] arguments = new String[words.length - 1];
                System.arraycopy(words, 1, arguments, 0, arguments.length);
                Method main = Class.forName(words[0], true, loader).getMethod("main", new Class[] {String[].class});
                main.invoke(null, new Object[] {arguments});
                othersEnd();
                end(0);
            } catch (Exited exited) {
                return;
            } catch (InvocationTargetException thrown) {
                if (!(thrown.getCause() instanceof Exited)) {
                    fail(thrown.getCause());
                }
            } catch (Throwable thrown) {
                fail(thrown);
            }
        }

        private void fail(Throwable thrown) {
            System.err.print("Exception in thread \"main\" ");
            thrown.printStackTrace();
            end(1);
        }

        public void execute(int statusCode, String message) {
            end(statusCode);
            throw new Exited(); // on its way out it closes what a JVM that ends would just forget
        }

        public void addShutdownHook(String name, Runnable hook) {
            synchronized (hooks) {
                hooks.add(hook);
            }
        }

        /** What the tool has written until now counts, and what its hooks write; the first status counts. */
        private synchronized void end(int statusCode) {
            if (isOver) {
                return;
            }
            isOver = true;
            Object[] last;
            synchronized (hooks) {
                last = hooks.toArray();
            }
            for (int index = 0; index < last.length; index++) {
                ((Runnable) last[index]).run();
            }
            System.out.flush();
            System.err.flush();
            OUTPUT.target = null;
            ERRORS.target = null;
            status = statusCode;
            output = written.toByteArray();
            errors = said.toByteArray();
            ended.countDown();
        }

        /** A JVM ends with the last thread that is no daemon. */
        private void othersEnd() throws InterruptedException {
            while (isOtherAlive()) {
                Thread.sleep(5);
            }
        }

        private boolean isOtherAlive() {
            Thread[] threads = new Thread[group.activeCount() + 16];
            int count = group.enumerate(threads);
            for (int index = 0; index < count; index++) {
                if (threads[index] != Thread.currentThread() && !threads[index].isDaemon()) {
                    return true;
                }
            }
            return false;
        }

        /** Whether nothing of the tool runs on, once it had the time to end. */
        boolean clean() throws Exception {
            long until = System.currentTimeMillis() + CLEANING_MS;
            boolean isClosed = false;
            while (runsOn()) {
                if (System.currentTimeMillis() > until) {
                    return false;
                }
                if (!isClosed && !main.isAlive()) {
                    isClosed = true;
                    closeAdmins();
                }
                Thread.sleep(2);
            }
            loader.close();
            return true;
        }

        private boolean runsOn() {
            Thread[] threads = new Thread[group.activeCount() + 16];
            int count = group.enumerate(threads);
            for (int index = 0; index < count; index++) {
                if (!threads[index].getName().startsWith(OF_ALL_TOOLS)) {
                    return true;
                }
            }
            return false;
        }

        /** Those that the tool has left open, as kafka-transactions leaves its own: the end of a JVM would end them. */
        private void closeAdmins() {
            Thread[] threads = new Thread[group.activeCount() + 16];
            int count = group.enumerate(threads);
            for (int index = 0; index < count; index++) {
                try {
                    Object admin = field(work(threads[index]), "this$0");
                    if (admin instanceof Admin) {
                        ((Admin) admin).close(Duration.ZERO);
                    }
                } catch (ReflectiveOperationException other) {
                    continue; // no thread of an admin: it has its time to end
                } catch (RuntimeException closed) {
                    continue; // nor is one of Java's own, which nobody may look into
                }
            }
        }

        /** What a thread runs; it stands elsewhere from Java 19 on. */
        private static Object work(Thread thread) throws ReflectiveOperationException {
            try {
                return field(Thread.class, thread, "target");
            } catch (NoSuchFieldException newer) {
                return field(field(Thread.class, thread, "holder"), "task");
            }
        }

        private static Object field(Object owner, String name) throws ReflectiveOperationException {
            if (owner == null) {
                throw new NoSuchFieldException(name);
            }
            return field(owner.getClass(), owner, name);
        }

        private static Object field(Class of, Object owner, String name) throws ReflectiveOperationException {
            Field found = of.getDeclaredField(name);
            found.setAccessible(true);
            return found.get(owner);
        }
    }

    private static class Exited extends Error {
        Exited() {
            super("the tool has ended", null, false, false);
        }
    }

    /** Loads the tools anew each time: some count in static fields. What they stand on stays loaded, and warm. */
    private static class ToolLoader extends URLClassLoader {
        ToolLoader() throws Exception {
            super(toolJars(), ToolServer.class.getClassLoader());
        }

        private static URL[] toolJars() throws Exception {
            List found = new ArrayList();
            String[] paths = System.getProperty("java.class.path").split(java.io.File.pathSeparator);
            for (int index = 0; index < paths.length; index++) {
                java.io.File jar = new java.io.File(paths[index]);
                if (jar.getName().startsWith("kafka")) {
                    found.add(jar.toURI().toURL());
                }
            }
            return (URL[]) found.toArray(new URL[found.size()]);
        }

        protected Class loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("org.apache.kafka.tools.") && !name.startsWith("kafka.tools.")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class loaded = findLoadedClass(name);
                return loaded == null ? findClass(name) : loaded;
            }
        }
    }

    private static class SwitchedOutput extends OutputStream {
        volatile OutputStream target;

        public void write(int value) throws IOException {
            OutputStream now = target;
            if (now != null) {
                now.write(value);
            }
        }

        public void write(byte[] values, int offset, int length) throws IOException {
            OutputStream now = target;
            if (now != null) {
                now.write(values, offset, length);
            }
        }
    }

    private static class SwitchedInput extends InputStream {
        volatile InputStream target;

        public int read() throws IOException {
            return target.read();
        }

        public int read(byte[] values, int offset, int length) throws IOException {
            return target.read(values, offset, length);
        }

        public int available() throws IOException {
            return target.available();
        }
    }
}
